# Debian packages, one per component. deploy/packages/build runs cpack with this.
# Dependencies are those of the release it was built on, so the version names it: 0.1.0-1~debian12.
set(release unknown)
if(EXISTS /etc/os-release)
  file(STRINGS /etc/os-release id REGEX "^ID=")
  file(STRINGS /etc/os-release number REGEX "^VERSION_ID=")
  string(REGEX REPLACE "VERSION_ID|ID|[=\"]" "" release "${id}${number}")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR cgxd)
set(CPACK_PACKAGE_CONTACT "cgxd developers <cgxd@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_SOURCE_DIR}/build/packages)
set(CPACK_COMPONENTS_ALL daemon runtime development python)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_SET_DESTDIR ON)  # /etc lies outside the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE "1~${release}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(version "${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(scripts ${CMAKE_CURRENT_LIST_DIR}/debian)
set(CPACK_PRE_BUILD_SCRIPTS ${scripts}/finish.cmake)
set(CPACK_CGX_VERSION ${version})
string(TIMESTAMP CPACK_CGX_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME cgxd)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SUGGESTS python3-cgx)
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
    "${scripts}/cgxd/conffiles;${scripts}/cgxd/postinst;${scripts}/cgxd/prerm;${scripts}/cgxd/postrm")
set(CPACK_COMPONENT_DAEMON_DESCRIPTION
    "daemon that moves gradients between machines
One cgxd per machine adds up the gradients of its training processes,
compresses them, exchanges them with other machines and gives every
process the same result. With cgxctl, which shows and steers it, and
cgxsim, which says on paper what a policy would do.")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libcgx0)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/shlibs "libcgx 0 libcgx0 (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA "${CMAKE_CURRENT_BINARY_DIR}/shlibs;${scripts}/libcgx0/triggers")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS cgxd)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "client library of cgxd
What a training process links or loads to reach its machine's cgxd.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcgx-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libcgx0 (= ${version})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "client library of cgxd: header, pkg-config file, CMake package
For C and C++ programs that train through cgxd.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-cgx)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.9), python3-numpy, libcgx0 (>= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS cgxd)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS python3-torch)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${scripts}/python3-cgx/postinst;${scripts}/python3-cgx/prerm")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION
    "train through cgxd from Python
NumPy and DLPack arrays, and a communication hook for PyTorch's
DistributedDataParallel (python3-torch, or one from pip).")

foreach(component daemon runtime development python)
  string(TOUPPER ${component} COMPONENT)
  set(name ${CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME})
  set(CPACK_DEBIAN_${COMPONENT}_FILE_NAME DEB-DEFAULT)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name}
          COMPONENT ${component})
endforeach()

include(CPack)
