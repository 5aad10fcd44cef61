# Prints the sources of the targets in the current folder's CMakeLists.txt: `cmake -DROOT=... -DBUILD=... -P`, which
# looks for neither compilers nor libraries. The functions that find sources are those of the tree's CMakeLists.txt.
cmake_minimum_required(VERSION 3.25)
foreach(command add_compile_options add_custom_command add_dependencies add_subdirectory configure_file find_library
        find_package
        set_property set_source_files_properties set_target_properties target_compile_definitions target_compile_options
        target_include_directories target_link_libraries)
  cmake_language(EVAL CODE "function(${command})\nendfunction()")
endforeach()
foreach(command add_custom_target add_executable add_library target_sources)
  cmake_language(EVAL CODE "function(${command})\nmessage(\"\${ARGN}\")\nendfunction()")
endforeach()

function(code_of FILE OUT)  # not for scripts: whether the next build looks again
  file(READ ${FILE} code)
  string(REPLACE " CONFIGURE_DEPENDS" "" code "${code}")
  set(${OUT} "${code}" PARENT_SCOPE)
endfunction()
set(CMAKE_SOURCE_DIR ${ROOT})
set(CMAKE_BINARY_DIR ${BUILD})
code_of(${ROOT}/CMakeLists.txt code)
string(FIND "${code}" "\nfunction(cgx_apart)" begin)
string(FIND "${code}" "\nenable_testing()" end)
math(EXPR length "${end} - ${begin}")
string(SUBSTRING "${code}" ${begin} ${length} code)
cmake_language(EVAL CODE "${code}")

code_of(CMakeLists.txt code)
cmake_language(EVAL CODE "${code}")
