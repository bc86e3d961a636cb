"""A batch from claim to certificate, compared with the closed form: a mixture of one component is conjugate."""

from __future__ import annotations

import json
import signal
import uuid
from datetime import timedelta

import numpy as np
import pytest
from safetensors.numpy import load, save
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lethe.verify import verify
from service.logs import configure_logging
from service.settings import Settings
from service.store.artifacts.store import adopt, destroy_due, write_ahead
from service.store.batches.lifecycle import Claim
from service.store.batches.publication import BatchResult
from service.store.certificates.bundles import find_certificate
from service.store.certificates.statements import WORST_NOT_SHOWN
from service.store.database import Database
from service.store.datasets.dataset import load_dataset
from service.store.datasets.tree import DatasetTree
from service.store.deletions.views import find_view
from service.store.models.registry import change_policy, current_version
from service.store.tables import (
    AuditEntry,
    Batch,
    Certificate,
    DeletionSubject,
    DeletionTarget,
    Record,
    Subject,
    Version,
    now,
)
from tests import samples
from tests.worker.processes import start_forgetting
from worker import forget
from worker.context import WorkerContext
from worker.forget import forget_pending
from worker.lease import Lease


def truth(*forgotten_people: int) -> np.ndarray:
    retained = [row for row in range(len(samples.points())) if row // samples.ROWS_EACH not in forgotten_people]
    return load(samples.posterior(samples.points()[retained]))["mean"]


def files(settings: Settings, model_id: uuid.UUID) -> set[str]:
    return {path.name for path in (settings.artifact_dir / str(model_id)).iterdir()}


def certificates(session: Session) -> list[str]:
    """Return the certificates as downloaded, in the order of issue."""
    ids = session.scalars(select(Certificate.id).order_by(Certificate.issued_at))
    return [find_certificate(session, certificate_id, caller=None) for certificate_id in ids.all()]


def test_a_batch_forgets_erases_certifies_and_publishes(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    first, second = (samples.request_deletion(settings, database, number) for number in (1, 4))
    assert forget_pending(context, model_id) is True
    assert forget_pending(context, model_id) is False
    with database.reading() as session:
        version = current_version(session, model_id)
        assert (version.number, version.record_count) == (2, len(samples.points()) - 8)
        posterior = load(context.artifacts.get(model_id, version.posterior_digest))
        assert np.allclose(posterior["mean"], truth(1, 4), atol=1e-9)
        dataset = load_dataset(context.artifacts.get(model_id, version.dataset_digest))
        assert not set(dataset.records) & {*range(4, 8), *range(16, 20)}
        assert np.array_equal(dataset.arrays["x"], samples.points()[dataset.records])
        assert version.dataset_root == DatasetTree.from_dataset(dataset).root
        # The superseded files, which still hold the erased rows and their influence, are destroyed.
        assert files(settings, model_id) == {version.posterior_digest, version.dataset_digest}
        assert len(session.scalars(select(Record)).all()) == len(dataset.records)
        assert len(session.scalars(select(Subject)).all()) == samples.PEOPLE - 2
        assert set(session.scalars(select(DeletionSubject.subject_id))) == {None}
        for view in (first, second):
            deletion_view = find_view(session, view.deletion.id, caller=None)
            assert (deletion_view.deletion.status, deletion_view.deletion.outcome) == ("completed", None)
            bundle = find_certificate(session, deletion_view.targets[0].certificate_id, caller=None)
            checked = verify(
                bundle.encode(),
                context.signer.public_pem.encode(),
                context.artifacts.get(model_id, version.posterior_digest),
            )
            assert checked.predicate["subjects"] == list(view.commitments)
            assert checked.predicate["records"] == {"before": 40, "after": 32, "forgotten_in_batch": 8}
        actions = list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)))
    assert actions.count("certificate.issued") == actions.count("deletion.completed") == 2
    assert actions[-2:] == ["artifact.destroyed"] * 2


def test_a_data_set_without_salts_gets_a_commitment_with_its_next_batch(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    unsalted = save({"x": samples.points(), "record": np.arange(len(samples.points()))})
    digest = write_ahead(database, context.artifacts, model_id, "dataset", unsalted)
    with database.writing() as session:
        session.execute(update(Version).values(dataset_digest=digest, dataset_root=None))
        adopt(session, model_id, digest)
    for number in (1, 4):
        samples.request_deletion(settings, database, number)
        forget_pending(context, model_id)
    with database.reading() as session:
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        bundles = certificates(session)
    datasets = [verify(bundle.encode(), context.signer.public_pem.encode()).predicate["dataset"] for bundle in bundles]
    assert versions[0].dataset_root is None
    assert (datasets[0]["before"]["digest"], datasets[0]["before"]["records"]) == (digest, 40)
    assert datasets[0]["after"]["root"] == datasets[1]["before"]["root"] == versions[1].dataset_root
    assert datasets[1]["after"]["root"] == versions[2].dataset_root


def test_errors_of_successive_deletions_do_not_add_up(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    for number in (0, 3, 7):
        samples.request_deletion(settings, database, number)
        forget_pending(context, model_id)
    with database.reading() as session:
        versions = session.scalars(select(Version).order_by(Version.number)).all()
        assert [version.record_count for version in versions] == [40, 36, 32, 28]
        final = load(context.artifacts.get(model_id, versions[-1].posterior_digest))
    assert np.allclose(final["mean"], truth(0, 3, 7), atol=1e-9)


def test_a_bound_above_the_policy_is_not_published(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    # Rounding allows no proof of so small a bound, and the rung that needs none is not allowed.
    model_id = samples.register_sample(settings, database, epsilon=1e-40, rungs=["influence", "newton", "warm"])
    view = samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    with database.reading() as session:
        deletion_view = find_view(session, view.deletion.id, caller=None)
        assert deletion_view.deletion.status == "failed"
        failure = deletion_view.targets[0].failure or ""
        assert "the model's policy requires 1e-40 at level proved; nothing was published" in failure
        assert "Tried: influence" in failure
        assert current_version(session, model_id).number == 1
        assert session.scalars(select(Certificate)).all() == []


def test_a_policy_that_no_bound_can_meet_is_met_by_retraining(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database, epsilon=1e-40)
    samples.request_deletion(settings, database, 1)
    forget_pending(context, model_id)
    with database.reading() as session:
        certificate = session.scalars(select(Certificate)).one()
        final = load(context.artifacts.get(model_id, current_version(session, model_id).posterior_digest))
    assert (certificate.level, certificate.epsilon) == ("retrained", 0.0)
    assert np.allclose(final["mean"], truth(1), atol=1e-9)


def test_a_certificate_carries_what_an_attacker_could_still_learn(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """The worst example is shown to its own deletion only, and identified by the commitment of its person."""
    never_seen = np.random.default_rng(8).normal(size=(50, 2))
    model_id = samples.register_sample(settings, database, never_seen=save({"x": never_seen}))
    views = [samples.request_deletion(settings, database, number) for number in (2, 6)]
    forget_pending(context, model_id)
    with database.reading() as session:
        bundles = certificates(session)
    commitments = {str(view.deletion.id): view.commitments for view in views}
    shown = []
    for bundle in bundles:
        predicate = verify(bundle.encode(), context.signer.public_pem.encode()).predicate
        effects = predicate["effects"]
        assert [release["draws"] for release in effects["release"]] == [1, 10, 100]
        assert effects["pac_bayes"] is None  # a mixture has no error rate
        assert effects["membership"]["n_never_seen"] == 50
        worst = effects["membership"]["worst"]
        assert (worst is None) == (WORST_NOT_SHOWN in predicate["not_proved"])
        if worst is not None:
            shown.append(worst)
            assert [worst["commitment"]] == commitments[predicate["deletion"]]
            assert set(worst) == {"commitment", "p_value", "p_value_before", "adjusted"}
    assert len(shown) == 1


def test_a_policy_changed_during_a_batch_applies_to_the_next(
    settings: Settings, database: Database, context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    process = forget._process

    def meanwhile(context: WorkerContext, claim: Claim, lease: Lease) -> BatchResult:
        with database.writing() as session:
            change_policy(session, model_id, {**claim.policy, "epsilon": 1e-40, "rungs": ["influence"]}, "test")
        return process(context, claim, lease)

    monkeypatch.setattr(forget, "_process", meanwhile)
    forget_pending(context, model_id)
    with database.reading() as session:
        (bundle,) = certificates(session)
    policy = verify(bundle.encode(), context.signer.public_pem.encode()).predicate["policy"]
    assert policy == {
        "epsilon": 1e-6,
        "level": "proved",
        "rungs": samples.RUNGS,
        "seconds": None,
        "reference": "posterior",
    }


def test_a_batch_keeps_its_device_and_its_rungs(settings: Settings, database: Database, context: WorkerContext) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    forget_pending(context, model_id)
    with database.reading() as session:
        batch = session.scalars(select(Batch)).one()
    assert batch.device in ("cpu", "cuda:0")
    assert batch.rungs is not None
    assert batch.rungs[0]["name"] == "influence"
    assert batch.rungs[-1]["level"] == "proved"


def test_without_never_seen_rows_no_attack_is_reported(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    samples.request_deletion(settings, database, 2)
    forget_pending(context, model_id)
    with database.reading() as session:
        (bundle,) = certificates(session)
    membership = verify(bundle.encode(), context.signer.public_pem.encode()).predicate["effects"]["membership"]
    assert (membership["worst"], membership["after"]["forgotten"]) == (None, None)


def test_a_damaged_artifact_is_retried_not_published(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    with database.reading() as session:
        path = context.artifacts.path(model_id, current_version(session, model_id).dataset_digest)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\0")
    forget_pending(context, model_id)
    with database.writing() as session:
        deletion_view = find_view(session, view.deletion.id, caller=None)
        assert (deletion_view.deletion.status, deletion_view.targets[0].attempts) == ("pending", 1)
        assert "restore it from the backup" in (deletion_view.targets[0].failure or "")
        session.execute(update(DeletionTarget).values(not_before=now()))
    path.write_bytes(content)
    forget_pending(context, model_id)
    with database.reading() as session:
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"


KILL_POINTS = {
    "after the claim": "worker.forget._process = die",
    "after both files": "worker.forget.BatchResult = die",
    "before publishing": "worker.forget.publish = die",
    "inside the publishing transaction": "service.store.batches.publication.erase = die",
    "after publishing": "worker.forget.destroy_due = die",
}


@pytest.mark.parametrize("patch", KILL_POINTS.values(), ids=KILL_POINTS.keys())
def test_a_worker_killed_at_any_point_loses_nothing(
    settings: Settings, database: Database, context: WorkerContext, patch: str
) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1)
    _run_and_die(settings, model_id, patch)
    with database.writing() as session:  # as if the lease had run out
        session.execute(update(Batch).values(lease_expires_at=now() - timedelta(seconds=1)))
    forget_pending(context, model_id)
    destroy_due(context.database, context.artifacts)
    with database.reading() as session:
        version = current_version(session, model_id)
        assert (version.number, version.record_count) == (2, 36)
        assert find_view(session, view.deletion.id, caller=None).deletion.status == "completed"
        assert len(session.scalars(select(Certificate)).all()) == 1
        assert files(settings, model_id) == {version.posterior_digest, version.dataset_digest}
        posterior = load(context.artifacts.get(model_id, version.posterior_digest))
    assert np.allclose(posterior["mean"], truth(1), atol=1e-9)


def _run_and_die(settings: Settings, model_id: uuid.UUID, patch: str) -> None:
    """Run a real process that gets SIGKILL at the given point."""
    with start_forgetting(settings, model_id, patch) as dying:
        _, errors = dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL, errors


def test_every_log_line_of_a_deletion_carries_its_request_id(
    settings: Settings, database: Database, context: WorkerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    model_id = samples.register_sample(settings, database)
    view = samples.request_deletion(settings, database, 1, request_id="trace-42")
    configure_logging("INFO")
    forget_pending(context, model_id)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    events = [line["event"] for line in lines if line.get("request_id") == "trace-42"]
    assert events == ["deletion.claimed", "deletion.completed"]
    assert all(line["deletion_id"] == str(view.deletion.id) for line in lines if "deletion_id" in line)


def test_the_weights_of_a_sample_set_are_kept_from_version_to_version(
    settings: Settings, database: Database, context: WorkerContext
) -> None:
    """Log-weights of two people, one after the other, in closed form: ½ Σ ‖θ - x‖² over their rows, centred."""
    model_id = samples.register_sample_set(settings, database, rungs=["reweight"])
    draws = None
    for number in (3, 5):
        samples.request_deletion(settings, database, number, request_id=f"request-{number}")
        forget_pending(context, model_id)
        with database.reading() as session:
            posterior = load(context.artifacts.get(model_id, current_version(session, model_id).posterior_digest))
        assert draws is None or np.array_equal(draws, posterior["samples"])
        draws = posterior["samples"]
    data = samples.points().reshape(samples.PEOPLE, samples.ROWS_EACH, 2)
    forgotten = data[[3, 5]].reshape(-1, 2)
    expected = 0.5 * np.square(draws[:, None] - forgotten).sum((1, 2))
    assert np.allclose(posterior["log_weights"], expected - expected.mean(), rtol=0, atol=1e-10)
    assert 0 < posterior["log_weights_error"].item() < 1e-10
    with database.reading() as session:
        checked = [verify(bundle.encode(), context.signer.public_pem.encode()) for bundle in certificates(session)]
    for verified in checked:
        constants, release = verified.predicate["bound"]["constants"], verified.predicate["effects"]["release"]
        assert constants["reading"] == "weighted draws"
        assert release[1]["nats"] == pytest.approx(100 * verified.predicate["bound"]["epsilon"])
    assert checked[0].predicate["bound"]["epsilon"] < checked[1].predicate["bound"]["epsilon"]
