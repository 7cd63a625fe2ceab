"""Find methods of a class that only a base class could call."""

from __future__ import annotations

import functools
import types

from composer.core.unused_methods import added_attributes, added_methods, parameters_of


class Base:
    known_size = 1

    def known(self): ...


def unused(kind):
    return {name for name, *_ in added_methods(kind, Base)}


def test_methods_used_by_the_class_are_left_out():
    def decorated(function):
        @functools.wraps(function)
        def wrapper(*given):
            return function(*given)

        return wrapper

    class Mine(Base):
        size = 3

        def known(self):
            return [self.in_a_list() for _ in range(3)]

        def in_a_list(self): ...

        @property
        def value(self):
            return self.in_a_property()

        def in_a_property(self): ...

        @functools.cached_property
        def cached(self):
            return self.in_a_cache()

        def in_a_cache(self): ...

        @decorated
        def helper(self):
            return map(self.passed_on, ())

        def passed_on(self): ...

        @staticmethod
        def static(): ...

        @classmethod
        def of_class(cls): ...

        def _private(self):
            def inner():
                return self.in_a_function()

            return inner

        def in_a_function(self): ...

        def only_itself(self):
            super().only_itself()

    assert unused(Mine) == {"helper", "static", "of_class", "only_itself"}
    assert list(added_attributes(Mine, Base)) == ["size", "value", "cached"]


def test_names_used_by_getattr():
    class Mine(Base):
        def known(self):
            for name in ("by_string",):
                getattr(self, name)()
            getattr(self, f"on_{self}")()

        def by_string(self): ...
        def on_anything(self): ...
        def other(self): ...

    assert unused(Mine) == {"other"}


class Watched(Base):
    def seen_from_outside(self): ...


def outside():
    return [watched.seen_from_outside() for watched in (Watched(),)]


def test_functions_of_the_module_count():
    assert unused(Watched) == set()
    assert outside() == [None]


def test_docstrings_do_not_count_as_use():
    class Mine(Base):
        def known(self):
            """on_"""
            getattr(self, "x", None)

        def on_anything(self): ...

    assert unused(Mine) == {"on_anything"}


def test_parents_count_but_not_interfaces_of_other_packages():
    class Theirs:
        def on_theirs(self): ...

    Theirs.__module__ = "another_library.callbacks"

    class Mixin:
        def mixed_in(self): ...

    class Parent(Base):
        def of_parent(self): ...

    class Mine(Mixin, Parent, Theirs):
        def on_theirs(self): ...
        def mine(self): ...

    found = {name: classes for name, _, classes in added_methods(Mine, Base)}
    assert found.keys() == {"mine", "mixed_in", "of_parent"}
    assert found["mine"] == [Mine]
    assert found["of_parent"] == [Mine, Mixin, Parent]


def test_parameters():
    assert parameters_of(types.MethodType(lambda self, a: None, 1)) == ("a",)
    assert parameters_of(dict) == ()
