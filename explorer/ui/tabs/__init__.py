"""One module per tab; each offers `build(...)`, called inside the page's Blocks."""
