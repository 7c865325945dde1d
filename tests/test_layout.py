import copy

import numpy as np
import pytest
import reference
import torch
from torch import nn

from fedrc_flwr.layout import FlatModule, fingerprint, to_vector
from fedrc_flwr.models import ModelSettings, SplitModel, build_model

CPU = torch.device("cpu")


def with_batch_norm():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    return SplitModel(body, nn.Linear(3, 2))


def test_the_vector_is_the_parameters_then_the_floating_point_buffers():
    # Prepare
    module = with_batch_norm()
    expected = np.concatenate([reference.flatten(module), np.zeros(3), np.ones(3)])

    # Execute
    flat = FlatModule(module, CPU)

    # Assert: BatchNorm starts with means of 0 and variances of 1; its counter is not among them
    np.testing.assert_array_equal(flat.vector.numpy(), expected.astype(np.float32))
    # 4 * 3 + 3 of the linear layer, 3 + 3 of the normalisation, 3 * 2 + 2 of the head
    assert flat.parameter_count == 29
    assert len(flat.trainable) == len(flat.gradient()) == 29


def test_to_vector_has_the_order_of_the_flat_module():
    module = with_batch_norm()
    module.body[2].running_mean.uniform_()

    vector = to_vector(module)

    np.testing.assert_array_equal(vector, FlatModule(module, CPU).vector.numpy())
    assert vector.dtype == np.float32


def test_flattening_does_not_change_what_the_network_computes():
    # Prepare
    module, inputs = with_batch_norm().eval(), torch.randn(5, 2, 2)
    expected = copy.deepcopy(module)(inputs)

    # Execute
    flat = FlatModule(module, CPU)

    # Assert
    torch.testing.assert_close(flat.module(inputs), expected)


def test_loading_a_vector_sets_the_network():
    # Prepare
    source, inputs = with_batch_norm(), torch.randn(6, 2, 2)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.uniform_()
        source.body[2].running_mean.uniform_()
        source.body[2].running_var.uniform_(0.5, 2.0)
    flat = FlatModule(with_batch_norm(), CPU)

    # Execute
    flat.load(to_vector(source))

    # Assert
    torch.testing.assert_close(flat.module.eval()(inputs), source.eval()(inputs))


def test_parameters_and_buffers_are_views_of_the_vector():
    # Prepare
    flat = FlatModule(with_batch_norm(), CPU)
    module = flat.module

    # Execute
    flat.vector.fill_(2.0)
    module.train()(torch.randn(8, 2, 2)).sum().backward()

    # Assert: what is written to the vector is in the network, and the other way round
    assert (module.head.weight == 2.0).all()
    gradients = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(flat.gradient(), gradients)
    assert gradients.abs().sum() > 0
    running = torch.cat([module.body[2].running_mean, module.body[2].running_var])
    torch.testing.assert_close(flat.vector[29:], running)
    assert not (running == 2.0).any()


def test_a_gradient_that_was_cleared_is_zero():
    flat = FlatModule(with_batch_norm(), CPU)
    flat.module.train()(torch.randn(8, 2, 2)).sum().backward()

    flat.clear_gradient()

    assert not flat.gradient().any()


def test_integer_buffers_stay_integers_and_are_not_loaded():
    # Prepare: a network that has seen a batch
    flat = FlatModule(with_batch_norm(), CPU)
    flat.module.train()(torch.randn(8, 2, 2))

    # Execute
    flat.load(np.full(len(flat.vector), 0.5, dtype=np.float32))

    # Assert
    counter = flat.module.body[2].num_batches_tracked
    assert counter.dtype == torch.int64
    assert int(counter) == 1


def test_a_module_without_parameters_is_an_empty_vector():
    flat = FlatModule(nn.Flatten(), CPU)

    assert len(flat.vector) == flat.parameter_count == 0
    np.testing.assert_array_equal(to_vector(nn.Flatten()), np.zeros(0, dtype=np.float32))


def test_the_fingerprint_is_of_names_and_shapes_not_of_values():
    one, other = with_batch_norm(), with_batch_norm()
    with torch.no_grad():
        other.head.weight.add_(1.0)

    assert fingerprint(one, False) == fingerprint(other, False)
    assert fingerprint(one, False) != fingerprint(one, True)


@pytest.mark.parametrize(
    "other",
    [
        SplitModel(nn.Linear(4, 5), nn.Linear(5, 2)),
        SplitModel(nn.Linear(4, 3), nn.Linear(3, 2, bias=False)),
        SplitModel(nn.Sequential(nn.Linear(4, 3)), nn.Linear(3, 2)),
    ],
)
def test_another_shape_name_or_set_of_tensors_is_another_fingerprint(other):
    one = SplitModel(nn.Linear(4, 3), nn.Linear(3, 2))

    assert fingerprint(one, False) != fingerprint(other, False)


def test_a_network_in_half_precision_travels_in_single():
    module = nn.Linear(3, 2).half()

    assert to_vector(module).dtype == np.float32
    assert FlatModule(module, CPU).vector.dtype == torch.float32


# --- the networks --------------------------------------------------------------------------------


def test_initial_parameters_follow_from_the_seed_alone():
    # Prepare
    settings = ModelSettings(network="mlp", hidden=5)
    torch.manual_seed(1)
    one = build_model(settings, (8, 8), 10, seed=3)

    # Execute
    torch.manual_seed(2)
    again, other = (build_model(settings, (8, 8), 10, seed=s) for s in (3, 4))

    # Assert
    np.testing.assert_array_equal(to_vector(one), to_vector(again))
    assert (to_vector(one) != to_vector(other)).any()


def test_building_a_network_leaves_the_global_random_state_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)

    build_model(ModelSettings(), (8, 8), 10, seed=3)

    torch.testing.assert_close(torch.rand(3), expected)


def test_the_mlp_has_the_asked_size_and_is_its_head_after_its_body():
    # Prepare
    model, inputs = (
        build_model(ModelSettings(network="mlp", hidden=5), (8, 8), 10, seed=0),
        torch.randn(2, 8, 8),
    )

    # Execute
    features = model.body(inputs)

    # Assert
    assert features.shape == (2, 5)
    torch.testing.assert_close(model(inputs), model.head(features))
    # 64 * 5 + 5, 5 * 5 + 5, 5 * 10 + 10
    assert len(to_vector(model)) == 415
