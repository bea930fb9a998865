"""The files of Higgs Lines: what rows become, what lies in the folder, what the page lists."""
