"""A run that begins on one host and ends on another: PostgreSQL, S3, two hosts."""
