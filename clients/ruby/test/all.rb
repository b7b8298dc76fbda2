# frozen_string_literal: true

# Runs all tests but the kill matrix, which DIBS_MATRIX=1 adds.
%w[lock batch hooks process line silent deadline unanswered once strike transaction semaphore job testing send readme].each { |name| require_relative "#{name}_test" }
require_relative "matrix" if ENV["DIBS_MATRIX"] == "1"
