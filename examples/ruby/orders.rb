# frozen_string_literal: true

# A worker pays orders. They come over standard input, one number a line, from a queue that
# delivers an order again if the worker died. The worker answers with the order and the number of
# its payment.
#
# "broken" shows the usual code: the payment is committed, and then the key is completed. A worker
# that is killed between the two leaves a payment without a record, and the next one pays again.
# The cure is "in: database": the last statement of the transaction completes the key.
#
#   dibs migrate --store "$DATABASE_URL"
#   dibs serve --store "$DATABASE_URL" --listen unix:/tmp/dibs.sock
#   psql "$DATABASE_URL" -c 'CREATE TABLE payments (number serial, of_order int, amount int)'
#   echo 17 | DIBS_SERVER=unix:/tmp/dibs.sock ruby -Iclients/ruby/lib examples/ruby/orders.rb [broken]

require "dibs"
require "pg"

KEYS = Dibs.connect(ttl: 1) # the key of a worker that died is free after a second

# pay writes the payment of an order and returns its number.
def pay(database, order)
  database.exec_params("INSERT INTO payments (of_order, amount) VALUES ($1, 990) RETURNING number", [order]).getvalue(0, 0).to_i
end

def broken(database, order)
  KEYS.once("order #{order}") { database.transaction { pay(database, order) } }
end

def cured(database, order)
  KEYS.once("order #{order}", in: database) { pay(database, order) }
end

way = ARGV.first == "broken" ? method(:broken) : method(:cured)
$stdout.sync = true
orders = Queue.new
workers = Array.new(Integer(ENV.fetch("WORKERS", 1))) do
  Thread.new do
    database = PG.connect(ENV.fetch("DATABASE_URL"))
    while (order = orders.pop)
      begin
        $stdout.write("#{order} #{way.call(database, order)}\n")
      rescue Dibs::Error, PG::TransactionRollback => e
        warn "order #{order} is tried again: #{e.class}" # which is safe, and that is the point
        retry
      end
    end
  end
end
$stdin.each_line { |line| orders << Integer(line) }
orders.close
workers.each(&:join)
