"""Keep the catalog consistent with the directories."""
