"""Scripts with one fault each, their corrected twins, and whether lab tells them apart."""
