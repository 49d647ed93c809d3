// Every exception of native code as a Python exception: the one place where they are translated.
//
//   Closed                                   contig.ClosedError
//   Damaged                                  contig.DamagedError
//   Overload                                 contig.OverloadError
//   Busy                                     contig.TapeBusy
//   NoSpace; std::system_error if the
//   system has no memory or no disk          contig.StorageFull
//   std::system_error                        OSError, or what the system calls it
//   std::bad_alloc                           MemoryError
//   std::invalid_argument, domain_error,
//   length_error                             ValueError
//   std::out_of_range                        IndexError
//   std::bad_cast                            TypeError
//   everything else                          contig.StateError
//
// The last are broken invariants and misuse that no argument shows: memory that somebody else wrote
// over, a writer in two threads, a lock that is taken twice.
#include "native/sys/errors.h"

#include <nanobind/nanobind.h>

#include <cerrno>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <typeinfo>

#include "native/bind/handles.h"

namespace contig {

namespace {

PyObject* storage_full = nullptr;
PyObject* tape_busy = nullptr;

// `contig.errors` imports this module, so its classes are looked up when they are needed.
void raise(const char* name, const char* text) {
  PyObject* errors = PyImport_ImportModule("contig.errors");
  PyObject* kind = errors == nullptr ? nullptr : PyObject_GetAttrString(errors, name);
  if (kind != nullptr) PyErr_SetString(kind, text);
  Py_XDECREF(kind);
  Py_XDECREF(errors);
}

bool is_full(int number) {
#ifdef EDQUOT
  if (number == EDQUOT) return true;
#endif
  return number == ENOMEM || number == ENOSPC;
}

void raise_system_error(const std::system_error& error) {
  const int number = error.code().value();
  PyObject* arguments = Py_BuildValue("(is)", number, error.what());
  if (arguments == nullptr) return;
  PyErr_SetObject(is_full(number) ? storage_full : PyExc_OSError, arguments);
  Py_DECREF(arguments);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Closed& error) {
    raise("ClosedError", error.what());
  } catch (const Damaged& error) {
    raise("DamagedError", error.what());
  } catch (const Overload& error) {
    raise("OverloadError", error.what());
  } catch (const Busy& error) {
    PyErr_SetString(tape_busy, error.what());
  } catch (const NoSpace& error) {
    PyErr_SetString(storage_full, error.what());
  } catch (const std::system_error& error) {
    raise_system_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "native code cannot have the memory that it needs");
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::domain_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::length_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_TypeError, "an argument has a part of another type than is expected");
  } catch (const std::exception& error) {
    raise("StateError", error.what());
  }
}

PyObject* make(nb::module_& m, const char* name, PyObject* base) {
  const std::string whole = std::string("contig._native.") + name;
  PyObject* kind = PyErr_NewException(whole.c_str(), base, nullptr);
  if (kind == nullptr) throw nb::python_error();
  m.attr(name) = nb::borrow(kind);
  return kind;  // it lives as long as the process
}

}  // namespace

void bind_errors(nb::module_& m) {
  storage_full = make(m, "StorageFull", PyExc_OSError);
  tape_busy = make(m, "TapeBusy", PyExc_TimeoutError);
  nb::register_exception_translator(translate);
}

}  // namespace contig
