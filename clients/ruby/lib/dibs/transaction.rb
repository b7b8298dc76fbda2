# frozen_string_literal: true

module Dibs
  # Postgres is a connection of the application, and the functions of the store in its database.
  class Postgres # :nodoc:
    IDLE, ACTIVE, IN_TRANSACTION = 0, 1, 2 # of PG::Connection#transaction_status
    SQLSTATE, DETAIL = 67, 68             # of PG::Result#error_field

    def initialize(client, connection)
      @client = client
      @given = connection
      connection = connection.connection if !connection.respond_to?(:exec_params) && connection.respond_to?(:connection)
      connection = connection.raw_connection if connection.respond_to?(:raw_connection)
      unless connection.respond_to?(:exec_params) && connection.respond_to?(:transaction_status)
        raise ArgumentError, "dibs: #{connection.class} is not a connection to PostgreSQL; it must be a PG::Connection, or a class or connection of ActiveRecord"
      end
      @connection = connection
    end

    # run runs the block in a transaction of its own. PG and ActiveRecord commit a block that is left
    # with break or throw, and PG one whose thread is killed. Here all of them roll back.
    def run
      if @connection.transaction_status != IDLE
        raise WrongTransaction, "dibs: the connection is in a transaction already; once begins and commits its own, so call it outside, or use complete_in"
      end
      @given.transaction do
        whole = false
        begin
          @connection.exec("SET LOCAL dibs.run = 'on'")
          yield
          whole = true
        rescue Exception # rubocop:disable Lint/RescueException
          whole = true # it is rolled back because of the error
          raise
        ensure
          abort_run unless whole
        end
      end
    end

    def settle(claim, namespace, data, retention, proof)
      if @connection.transaction_status != IN_TRANSACTION
        raise WrongTransaction.new("dibs: the connection is not in a transaction, or a statement of it failed; begin one, and call complete_in as its last statement", key: claim.key)
      end
      answer = call("settle_in", "SELECT %s($1::text, $2::text, $3::text, $4::text::interval, $5::text, 'base64', $6::text), txid_current()",
                    [base64(claim.key), claim.token, data && base64(data), interval(retention), namespace, proof], claim)
      @transaction = answer.getvalue(0, 1)
      nil
    end

    # committed? reports whether the transaction of settle was committed. If a statement failed after
    # settle and its error was swallowed, PostgreSQL answers COMMIT with ROLLBACK, and with no error.
    def committed?
      @connection.exec_params("SELECT txid_status($1::text::bigint)", [@transaction]).getvalue(0, 0) == "committed"
    end

    def reserve(claim, namespace, place_ttl, grace, owner)
      call("reserve_in", "SELECT %s($1::text, $2::text::interval, $3::text::interval, $4::text, $5::text, 'base64')",
           [base64(claim.key), interval(place_ttl), interval(grace || 0), namespace, base64(owner)], claim).getvalue(0, 0)
    end

    private

    # abort_run rolls back. An exception does that, but it would end the killing of a thread.
    def abort_run
      if Thread.current.status != "aborting"
        raise WrongTransaction, "dibs: the block of once was left before its end, so its transaction is rolled back"
      end

      @connection.cancel if @connection.transaction_status == ACTIVE
      @connection.block
      @connection.exec("ROLLBACK")
    rescue WrongTransaction
      raise
    rescue StandardError
      @connection.finish
    end

    def call(function, sql, values, claim)
      name = [@client.schema, "#{@client.prefix}_#{function}"].map { |part| "\"#{part.gsub("\"", "\"\"")}\"" }.join(".")
      @connection.exec_params(format(sql, name), values)
    rescue StandardError => e
      state, detail = e.respond_to?(:result) && e.result ? [e.result.error_field(SQLSTATE), e.result.error_field(DETAIL)] : nil
      case state
      when "DIBS1" then raise Lost.new("dibs: the lease of the key #{claim.shown} is lost: #{detail}", key: claim.key)
      when "DIBS2" then raise WrongTransaction.new("dibs: the block of once ended its transaction and began another one; leave that to once", key: claim.key)
      when "22023", "54000"
        raise TooLarge.new("dibs: the key #{claim.shown}: #{e.message.lines.first&.chomp}", key: claim.key) # of what it passes, only the data has no bound here
      when "42883", "3F000"
        raise Refused.new("dibs: this database has no function #{name} of this version. Name the store's schema: and prefix: when you connect, or run dibs migrate (#{e.message.lines.first&.chomp})", key: claim.key)
      when "42501"
        raise Forbidden.new("dibs: the role may not call #{name}: GRANT USAGE ON SCHEMA and EXECUTE ON FUNCTION (#{e.message.lines.first&.chomp})", key: claim.key)
      end
      raise
    end

    def base64(bytes)
      [bytes].pack("m0")
    end

    def interval(seconds)
      "#{(seconds * 1_000_000).ceil} microseconds"
    end
  end
end
