# frozen_string_literal: true

require_relative "lib/dibs"

Gem::Specification.new do |s|
  s.name = "dibs"
  s.version = Dibs::VERSION
  s.summary = "Locks, semaphores, places in a queue and stored results over dibs serve"
  s.authors = ["The dibs authors"]
  s.license = "Apache-2.0"
  s.homepage = "https://github.com/dibs-go/dibs/tree/main/clients/ruby"
  s.required_ruby_version = ">= 3.0"
  s.files = Dir["lib/**/*.rb", "README.md", "LICENSE"] # the release adds LICENSE
end
