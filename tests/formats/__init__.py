"""The release before beside this one: records of two formats in one store."""
