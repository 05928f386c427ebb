"""Lines of the product, changed one at a time: which test dies of it?"""
