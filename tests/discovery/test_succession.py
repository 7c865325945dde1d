import numpy as np

from fedrc_flwr.discovery.succession import succession


def test_groups_keep_the_clusters_that_most_of_their_clients_come_from():
    # Group 0 holds two clients of cluster 4 and one of 7; group 1 two of cluster 7.
    groups, before = np.array([0, 0, 0, 1, 1]), np.array([4, 4, 7, 7, 7])

    found = succession(groups, before, (4, 7), new=9)

    assert found.clusters == (4, 7)
    assert found.origins == (4, 7)
    assert found.heirs == {}


def test_group_without_a_cluster_gets_a_new_one_and_starts_from_its_members():
    groups, before = np.array([0, 0, 0, 1, 1]), np.array([4, 4, 4, 4, -1])

    found = succession(groups, before, (4,), new=9)

    assert found.clusters == (4, 9)
    assert found.origins == (4, 4)


def test_cluster_that_no_group_continues_is_inherited():
    groups, before = np.array([0, 0, 0]), np.array([4, 4, 7])

    found = succession(groups, before, (4, 7), new=9)

    assert found.clusters == (4,)
    assert found.heirs == {7: 4}


def test_clients_without_a_group_have_no_say():
    groups, before = np.array([-1, -1, 0, 1]), np.array([7, 7, 4, 7])

    found = succession(groups, before, (4, 7), new=9)

    assert found.clusters == (4, 7)
