import pytest

from tests.serving import live_server, run_config, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def live(model):
    """One server for all tests that leave it as it was."""
    with live_server(run_config(model)) as server:
        yield server
