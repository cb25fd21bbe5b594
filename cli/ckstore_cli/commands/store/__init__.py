"""Commands about a store as a whole, and the demo."""
