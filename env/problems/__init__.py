"""Problems of the server: the schema, the generated ones, the store."""
