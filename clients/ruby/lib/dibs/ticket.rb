# frozen_string_literal: true

module Dibs
  # Ticket is a place in a key's queue as text: the same text as in the Go library.
  module Ticket # :nodoc:
    module_function

    def write(claim)
      ["dibs1", [[claim.token].pack("H*")], [claim.namespace], [claim.key]].flatten
        .each_with_index.map { |part, i| i.zero? ? part : [part].pack("m0").tr("+/", "-_").delete("=") }.join(".")
    end

    # read returns the token, the namespace and the key.
    def read(text)
      parts = text.is_a?(String) ? text.split(".", -1) : []
      bad unless parts.size == 4 && parts[0] == "dibs1"
      token, namespace, key = parts[1..].map do |part|
        bad unless part.match?(/\A[\w-]*\z/)
        bytes = part.tr("-_", "+/").ljust((part.size + 3) / 4 * 4, "=").unpack1("m0")
        bad unless [bytes].pack("m0").tr("+/", "-_").delete("=") == part
        bytes
      end
      bad unless token.bytesize == 16
      [token.unpack1("H*"), namespace.force_encoding(Encoding::UTF_8), key.force_encoding(Encoding::UTF_8)]
    rescue ArgumentError
      bad
    end

    def bad
      raise ArgumentError, "dibs: not a ticket of Dibs::Client#reserve" # without the text, which is a secret
    end
  end
end
