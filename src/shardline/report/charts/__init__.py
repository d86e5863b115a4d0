"""The report's charts as Vega-Lite specifications, and the libraries that draw them."""
