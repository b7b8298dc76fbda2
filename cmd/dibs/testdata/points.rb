# frozen_string_literal: true

# Package failpoint in Ruby: stops an application at the point that DIBS_FAILPOINT names, says so
# on descriptor 3, and waits there to be killed. The points are before and after what the
# application sends to PostgreSQL, and before and after its calls of once.

require "dibs"
require "pg"

module Points
  STATEMENTS = { /\ACOMMIT/ => "COMMIT", /\AINSERT/ => "effect", /settle_in/ => "settlement" }.freeze

  def self.reach(name)
    return if name != ENV["DIBS_FAILPOINT"]

    IO.for_fd(3).tap { |pipe| pipe.write("reached\n") && pipe.flush }
    sleep
  end

  def self.around(name)
    reach("before #{name}")
    result = yield
    reach("after #{name}")
    result
  end

  # Statements are those of a connection.
  module Statements
    %i[exec exec_params].each do |method|
      define_method(method) do |sql, *rest|
        name = STATEMENTS.find { |pattern, _| sql.match?(pattern) }&.last
        name ? Points.around(name) { super(sql, *rest) } : super(sql, *rest)
      end
    end
  end
  PG::Connection.prepend(Statements)

  # Calls are those of once.
  module Calls
    def once(...)
      Points.around("call") { super }
    end
  end
  Dibs::Client.prepend(Calls)
end
