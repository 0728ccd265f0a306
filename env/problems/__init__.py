"""Problems: one schema, several sources."""
