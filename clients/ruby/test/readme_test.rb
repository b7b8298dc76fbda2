# frozen_string_literal: true

require_relative "support"

# The README's programs run as printed.
class ReadmeTest < Case
  README = File.read(File.expand_path("../README.md", __dir__))

  def test_the_programs_run
    said = README.scan(/^```ruby\n(.*?)^```/m).map do |(text)|
      pid, _, from = script(@server.url, text)
      out = Timeout.timeout(LIMIT) { from.read }
      assert_predicate ended(pid), :success?, text
      out
    end
    assert_match(/\Apage 0 with fence \d+\npage 1 with fence \d+\npage 2 with fence \d+\n100\n\z/, said[0])
    assert_equal "locked\n", said[1]
  end

  def test_every_error_is_in_the_table
    errors = Dibs.constants.map { |c| Dibs.const_get(c) }.grep(Class).select { |c| c < Dibs::Error }
    errors.each { |c| assert_includes README, "`#{c.name.delete_prefix("Dibs::")}`" }
  end
end
