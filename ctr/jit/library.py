"""`KernelLibrary`: turns Numba's code for a kernel into machine code, or into a part of another kernel.

Numba optimises each function with everything that it calls, and generates machine code for it, before its
caller optimises all of it again. Here a function that other kernels call is not optimised until LLVM gets the
whole kernel, once: the first `ctr train` compiles in 0.65 of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped,unused-ignore]  # what Numba itself links with
from numba.core import codegen
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target


@contextmanager
def kernel_libraries() -> Iterator[None]:
    """Make Numba compile and load into a `KernelLibrary`. The caller holds Numba's lock."""
    target: Any = cpu_target.target_context.codegen()
    before, target._library_class = target._library_class, KernelLibrary
    try:
        yield
    finally:
        target._library_class = before


class _NoEnvironments:
    """Replaces Numba's code generator for functions without machine code."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """Do nothing, as there is no machine code that needs an environment."""


class KernelLibrary(codegen.JITCodeLibrary):
    """Functions that become machine code once Python calls one of them."""

    _codegen: Any
    _is_machine_code = False

    def add_linking_library(self, library: Any) -> None:
        """Add a library with functions that these call."""
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        """Record that the library is complete."""
        self._finalized = True

    @property
    def codegen(self) -> Any:
        return self._codegen if self._is_machine_code else _NoEnvironments

    def get_pointer_to_function(self, name: str) -> Any:
        """The address of a function that Python calls; 0 if there is no such function."""
        if not self._is_machine_code:
            if not any(
                each.name == name and not each.is_declaration for each in self._final_module.functions
            ):
                return 0
            self._compile()
        return self._codegen._engine.get_function_address(name)

    def serialize_using_object_code(self) -> Any:
        """The machine code alone, for the cache, as kernels that call this one have a part of their own."""
        return self.name, "object", self._get_compiled_object()  # type: ignore[no-untyped-call]

    @classmethod
    def _unserialize(cls, target: Any, state: Any) -> Any:
        """The library of cached machine code.

        Numba would let LLVM compile an empty module, and then replace its code, in 1.2 instead of 0.15 ms.
        """
        name, _, machine_code = state
        library = cls.__new__(cls)
        codegen.CodeLibrary.__init__(library, target, name)  # not JITCodeLibrary's, which makes that module
        library._disable_inspection = library._finalized = library._is_machine_code = True
        engine = target._engine._ee
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        return library

    def _compile(self) -> None:
        self._is_machine_code = True
        self._link(self._final_module)
        self._optimize_final_module()  # type: ignore[no-untyped-call]
        self._final_module.verify()
        self._finalize_final_module()  # type: ignore[no-untyped-call]
        for variable in self._final_module.global_variables:
            if (environment := lookup_environment(variable.name)) is not None:  # type: ignore[no-untyped-call]
                self._codegen.set_env(variable.name, environment)

    def _get_module_for_linking(self) -> Any:
        """The module for libraries of another class, with all functions that these call."""
        module = self._part().clone()
        self._link(module)
        return module

    def _link(self, module: Any) -> None:
        """Link everything that these functions call into a module that has them."""
        # LLVM only links what is already called, so callers come first.
        for library in reversed(self._called({self})[:-1]):
            part = (
                library._part() if isinstance(library, KernelLibrary) else library._get_module_for_linking()
            )
            module.link_in(part, preserve=True)

    def _called(self, known: set[Any]) -> list[Any]:
        """The libraries called, even indirectly, except `known` ones, and this one: callees first."""
        called = []
        for library in self._linking_libraries:
            if library not in known:
                known.add(library)
                called += library._called(known) if isinstance(library, KernelLibrary) else [library]
        return [*called, self]

    def _part(self) -> Any:
        """The module of these functions alone, to be linked into their callers."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        return self._final_module
