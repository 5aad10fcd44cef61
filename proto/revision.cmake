# cmake -DSOURCE=... -DOUTPUT=... [-DREVISION=...] -P revision.cmake: writes revision.cc, only when the text changes.
# Not a checkout, no git, or a checkout inside another project's: an empty revision.
if(NOT REVISION AND EXISTS ${SOURCE}/.git)
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND ${GIT} --no-optional-locks describe --always --abbrev=12 --exclude=* --dirty=-modified
                    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE REVISION ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
set(text "#include \"proto/wire/revision.h\"\n\nnamespace cgx {\nconst char* revision() {\n  return \"${REVISION}\";\n}\n}\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
