"""A store that a process has found to arbitrate is not tried again; another one under the same name is."""

import pytest

from onceonly.storage import arbitration


@pytest.mark.parametrize(
    ("uri", "setting"),
    [
        ("s3://lake/state", "AWS_ENDPOINT_URL"),
        ("az://lake/state", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://lake/state", "AZURITE_BLOB_STORAGE_URL"),
        ("gs://lake/state", "GOOGLE_SERVICE_ACCOUNT"),
    ],
)
def test_each_store_is_tried_once(monkeypatch, uri, setting):
    tried = []
    monkeypatch.setattr(arbitration, "_arbitrates", set())
    monkeypatch.setattr(arbitration, "_most_winners", lambda trial: tried.append(trial) or 1)
    for where in ("here", "here", "there"):
        monkeypatch.setenv(setting, where)
        arbitration.check(uri)
    assert len(tried) == 2
