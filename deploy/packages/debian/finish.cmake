# Run by CPack on what is about to be packed: what Debian wants compressed, and a changelog for each package.
file(GLOB packages ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*)
foreach(package ${packages})
  get_filename_component(name ${package} NAME)
  file(WRITE ${package}/changelog.Debian "${name} (${CPACK_CGX_VERSION}) unstable; urgency=medium\n\n"
       "  * See /usr/share/doc/cgxd/CHANGELOG.md.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${CPACK_CGX_DATE}\n")
endforeach()
file(GLOB texts ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/man/*/*
     ${CPACK_TEMPORARY_DIRECTORY}/*/usr/share/doc/*/changelog.Debian)
foreach(text ${texts})
  execute_process(COMMAND gzip -9n ${text} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
