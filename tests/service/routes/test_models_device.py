from __future__ import annotations

import json

import redis

from service.settings import Settings
from service.store.states import Role
from tests import samples
from tests.service.conftest import Api
from tests.waiting import wait_until

PATH = "/api/v1/models"


def parts(device: str) -> dict[str, bytes]:
    manifest = json.loads(samples.parts()["manifest"])
    return samples.parts(manifest=json.dumps({**manifest, "device": device}).encode())


def test_a_deletion_from_a_model_that_needs_a_gpu_waits_for_one_and_says_so(api: Api, settings: Settings) -> None:
    with redis.Redis.from_url(settings.broker.replace("redis+socket://", "unix://")) as client:
        client.delete("lethe.cpu", "lethe.cuda")
        registered = api.call(Role.ENGINEER, "POST", PATH, files=parts("cuda"))
        assert registered.status_code == 201, registered.text
        wait_until(lambda: client.llen("lethe.cuda") == 1, "the doorbell rings for the check of the model")
        body = {"subjects": [samples.person(1)]}
        deletion = api.call(Role.COMPLIANCE, "POST", "/api/v1/deletions", json=body).json()
        wait_until(lambda: client.llen("lethe.cuda") == 2, "the doorbell rings for the deletion")
        assert client.llen("lethe.cpu") == 0
    model = api.call(Role.OPERATOR, "GET", f"{PATH}/{registered.json()['id']}").json()
    assert (model["device"], model["policy"]["epsilon"]) == ("cuda", 1e-6)
    status = api.call(Role.COMPLIANCE, "GET", f"/api/v1/deletions/{deletion['id']}").json()
    assert (status["status"], status["what_happens_next"][:31]) == ("pending", "One of its models needs a GPU: ")
    cancelled = api.call(Role.OPERATOR, "DELETE", f"/api/v1/deletions/{deletion['id']}").json()
    assert "GPU" not in cancelled["what_happens_next"]


def test_the_default_device_is_the_cpu(api: Api) -> None:
    assert api.call(Role.ENGINEER, "POST", PATH, files=samples.parts()).json()["device"] == "cpu"
    refused = api.call(Role.ENGINEER, "POST", PATH, files=parts("tpu"))
    assert (refused.status_code, "'cpu' or 'cuda'" in refused.text) == (422, True)
