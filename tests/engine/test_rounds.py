"""Who is asked in a round, and how many of them must reply."""

from __future__ import annotations

from settings_of import configured

from fedrc_flwr.engine.in_process import in_memory


def test_a_client_that_is_replaced_in_the_sample_is_not_waited_for(monkeypatch):
    # Prepare: three of six clients a round, all of which must reply; one always breaks the models
    config = configured(
        scenario="digits", clients=6, samples_per_client=20, hidden=4, observers_per_concept=0,
        fraction=0.5, min_replies=1.0, rounds=1, seed=2,
    )  # fmt: skip
    rounds, carrier = in_memory(config)
    bad = rounds.sample(carrier.online("train"), 1, 0)[0]
    participant = carrier.participants[bad]
    trained = participant.algorithm.train

    def train(broadcast, state, runtime):
        reply, state = trained(broadcast, state, runtime)
        if runtime.name == bad:
            reply.deltas.update({k: 0 * d + 1e38 for k, d in reply.deltas.items()})
        return reply, state

    monkeypatch.setattr(participant.algorithm, "train", train)
    log = []

    # Execute
    rounds.run(carrier, 1, 1, lambda state, metrics: log.append(metrics))

    # Assert: the second try has three others
    (metrics,) = log
    assert (metrics["attempts"], metrics["sampled"], metrics["replied"]) == (2, 3, 3)
    assert list(metrics["failed"]) == [bad]
