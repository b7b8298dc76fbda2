# frozen_string_literal: true

# Runs all tests but the kill matrix, which DIBS_MATRIX=1 adds.
Dir["#{__dir__}/*_test.rb"].each { |file| require file }
require_relative "matrix" if ENV["DIBS_MATRIX"] == "1"
