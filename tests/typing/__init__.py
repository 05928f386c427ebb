"""What mypy --strict and pyright say of programs that use incumbent, compared with what they should.

`right_*.py` have no error, `wrong_*.py` those that comments name at their lines. `make type` runs
both checkers, the tests mypy alone.
"""
