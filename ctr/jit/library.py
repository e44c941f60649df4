"""`KernelLibrary`: how what Numba makes of a kernel becomes machine code, or part of another kernel.

Numba optimises each function by itself with all that it calls, and writes machine code for it, before its
caller gets all of that to optimise once more. Here a function that other kernels call stays as it was written
until LLVM sees a whole kernel, once: the first `ctr train` compiles in 0.65 of the time.
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
    """What Numba compiles or loads is in a `KernelLibrary`. The caller holds Numba's lock."""
    target: Any = cpu_target.target_context.codegen()
    before, target._library_class = target._library_class, KernelLibrary
    try:
        yield
    finally:
        target._library_class = before


class _NoEnvironments:
    """In place of Numba's code generator, for what is no machine code."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """There is nothing that would need one."""


class KernelLibrary(codegen.JITCodeLibrary):
    """Some functions, which become machine code when one of them is to be called from Python."""

    _codegen: Any
    _is_machine_code = False

    def add_linking_library(self, library: Any) -> None:
        """Has functions that these call."""
        self._linking_libraries.append(library)

    def finalize(self) -> None:
        """Nothing else comes to these functions."""
        self._finalized = True

    @property
    def codegen(self) -> Any:
        return self._codegen if self._is_machine_code else _NoEnvironments

    def get_pointer_to_function(self, name: str) -> Any:
        """Of one that Python calls; 0 if there is no such function."""
        if not self._is_machine_code:
            if not any(
                each.name == name and not each.is_declaration for each in self._final_module.functions
            ):
                return 0
            self._compile()
        return self._codegen._engine.get_function_address(name)

    def serialize_using_object_code(self) -> Any:
        """For the cache: the machine code alone, as kernels that call this one have a part of their own."""
        return self.name, "object", self._get_compiled_object()  # type: ignore[no-untyped-call]

    @classmethod
    def _unserialize(cls, target: Any, state: Any) -> Any:
        """From the cache. Numba would have LLVM compile an empty module and hand it the machine code then,
        1.2 ms for each kernel instead of 0.15."""
        name, _, machine_code = state
        library = cls.__new__(cls)
        codegen.CodeLibrary.__init__(library, target, name)  # and no other, which would make that module
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
        """For libraries of another class: with all that is called."""
        module = self._part().clone()
        self._link(module)
        return module

    def _link(self, module: Any) -> None:
        """Put all that these functions call into a module that has them."""
        # LLVM takes what is called already, so that those that call others come first.
        for library in reversed(self._called({self})[:-1]):
            part = (
                library._part() if isinstance(library, KernelLibrary) else library._get_module_for_linking()
            )
            module.link_in(part, preserve=True)

    def _called(self, known: set[Any]) -> list[Any]:
        """Those that are not known yet, directly called or not, and this one: each behind those it calls."""
        called = []
        for library in self._linking_libraries:
            if library not in known:
                known.add(library)
                called += library._called(known) if isinstance(library, KernelLibrary) else [library]
        return [*called, self]

    def _part(self) -> Any:
        """These functions alone, to be linked where they are called."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        return self._final_module
