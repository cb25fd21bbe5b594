"""Keep the catalog equal to the directories."""
