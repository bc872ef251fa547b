"""What a user sees of the package itself."""

import stretto


def test_dir_lists_the_public_names_and_no_others():
    assert set(dir(stretto)) == {*stretto.__all__, "__version__"}
    assert all(hasattr(stretto, name) for name in dir(stretto))
