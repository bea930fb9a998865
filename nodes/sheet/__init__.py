"""The files of Higgs Lines: planned, present in the folder, listed on the page."""
