# Runs the TESTS (a:b:c) of a suite's PROGRAM. RESULT `passes`: each of them ran and passed. RESULT `fails`: the one there
# is ran and did not pass, be it by a failed expectation or by a crash. A program that does not start, or does not know
# the tests, is wrong in both cases.

execute_process(COMMAND ${PROGRAM} --gtest_filter=${TESTS} --gtest_color=no OUTPUT_VARIABLE output
                ERROR_VARIABLE output RESULT_VARIABLE status TIMEOUT 60)
string(REPLACE ":" ";" tests "${TESTS}")
list(LENGTH tests count)
message("${output}")

function(contains text result)
  string(FIND "${output}" "${text}" at)
  if(at EQUAL -1)
    set(${result} FALSE PARENT_SCOPE)
  else()
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

if(status MATCHES "timeout")
  message(FATAL_ERROR "${TESTS}: not at an end after 60 s.")
endif()
foreach(test ${tests})
  contains("[ RUN      ] ${test}\n" ran)
  contains("[       OK ] ${test} (" passed)
  if(NOT ran)
    message(FATAL_ERROR "${test} did not run (status ${status}).")
  endif()
  if(RESULT STREQUAL "passes" AND NOT passed)
    message(FATAL_ERROR "${test} does not pass with the kernels as they are (status ${status}).")
  endif()
  if(RESULT STREQUAL "fails" AND (passed OR status STREQUAL "0"))
    message(FATAL_ERROR "${test} passes in spite of the fault.")
  endif()
endforeach()
if(RESULT STREQUAL "passes" AND NOT status STREQUAL "0")
  message(FATAL_ERROR "All ${count} tests passed, and yet the status is ${status}.")
endif()
