"""What `composer.algorithms` and `composer.functional` export."""

from __future__ import annotations

import inspect

from composer import algorithms, functional
from composer.core import Algorithm


def test_the_list_of_methods_has_classes_only() -> None:
    """Scripts iterate over it to find every method."""
    classes = [getattr(algorithms, name) for name in algorithms.__all__]
    assert all(inspect.isclass(found) for found in classes)
    assert sum(issubclass(found, Algorithm) for found in classes) > 30
    namespace: dict[str, object] = {}
    exec("from composer.algorithms import *", namespace)
    assert set(algorithms.__all__) == set(namespace) - {"__builtins__"}


def test_functions_are_in_both_modules() -> None:
    assert functional.__all__
    for name in functional.__all__:
        assert inspect.isfunction(getattr(functional, name))
        assert getattr(algorithms, name) is getattr(functional, name)
        assert name in dir(algorithms)
        assert name not in algorithms.__all__
