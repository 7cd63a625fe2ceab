"""Compatibility with MosaicML Composer 0.32, and hints for names of other libraries.

In reading order: ``import_aliases`` and ``import_alias_table`` (the predecessor's import paths),
``predecessor_installed`` (both packages in one environment), ``other_libraries`` and ``other_library_values`` (names
and values of Lightning, Hugging Face, Keras and fastai), ``name_hints`` (lookups in these tables).
"""
