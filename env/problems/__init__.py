"""Problems of the server: the schema, the generated worlds, the store."""
