# frozen_string_literal: true

module Dibs
  # Address is what a URL says.
  class Address # :nodoc:
    # Clock is the time of the process.
    module Clock
      module_function

      def now
        Dibs.now
      end

      def sleep(seconds)
        Kernel.sleep(seconds)
      end

      def threads?
        true
      end
    end

    attr_reader :servers

    Server = Struct.new(:host, :port, :tls, :socket, :secret) do
      def connection
        Connection.new(self)
      end

      # inspect shows no token.
      def inspect
        "#<Dibs::Address::Server #{self}>"
      end

      def to_s
        socket ? "unix:#{socket}" : "#{tls ? "https" : "http"}://#{host}:#{port}"
      end
    end

    def initialize(url)
      raise ArgumentError, "dibs: the URL of a server is a text, not #{url.class}" unless url.is_a?(String)

      url.match?(/\A(http\+)?unix:/) ? socket(url) : hosts(url)
    end

    def clock
      Clock
    end

    private

    def socket(url)
      path = url.sub(/\A(http\+)?unix:/, "").sub(%r{\A//(?=/)}, "")
      if !path.start_with?("/") || path.start_with?("//") || path.match?(/[?#]/)
        bad "the URL of a socket is unix: and an absolute path, such as unix:/run/dibs/dibs.sock"
      end
      @servers = [Server.new("localhost", nil, false, path)]
    end

    def hosts(url)
      scheme, rest = url.split("://", 2)
      bad "it must begin with https://, http:// or unix:" unless rest && %w[http https].include?(scheme)
      user, at, list = rest.rpartition("@")
      unless at.empty?
        unless user.start_with?(":") && user.size > 1
          bad "the token stands in the password's place and there is no user, as in https://:TOKEN@HOST"
        end
        bad "the token has a % that is not an escape" if user.match?(/%(?!\h\h)/)
        secret = URI.decode_www_form_component(user[1..].gsub("+", "%2B"))
        bad "the token has a line break" if secret.match?(/[\r\n]/n)
      end
      list = list.delete_suffix("/")
      bad "there is a path or a parameter after the host; the URL has neither" if list.match?(%r{[/?#]})
      @servers = list.split(",", -1).map { |host| server(scheme, host, secret) }
      bad "it has no host" if @servers.empty?
    end

    def server(scheme, text, secret)
      host, port = text.match(/\A(\[[\h:.]+\]|[^:\[\]@\s]+)(?::(\d+))?\z/)&.captures
      number = (port || (scheme == "https" ? 443 : 80)).to_i
      bad "a host is none: write HOST or HOST:PORT, and an @ after a token" unless host && number.between?(1, 65_535)
      Server.new(host.delete("[]"), number, scheme == "https", nil, secret)
    end

    def bad(why)
      raise ArgumentError, "dibs: not the URL of a server: #{why}" # without the URL, which may have the token
    end
  end
end
