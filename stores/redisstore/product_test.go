package redisstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestProducts: a product on which leases are not exclusive is refused by its name before a key is
// taken, and Check names one that is not tested. Behind each of them is a Redis, which answers all
// but INFO.
func TestProducts(t *testing.T) {
	t.Parallel()
	for _, p := range product.Redis.Products {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			var info strings.Builder
			info.WriteString("# Server\r\nredis_version:7.4.0\r\n")
			for _, sign := range p.Signs {
				info.WriteString(sign.Asked + ":" + sign.Says + "\r\n")
			}
			url := disguise(t, info.String())
			sqltest.Product(t, &p, ErrUnsupported,
				func() (*Store, error) { return Open(t.Context(), url, nil) }, func() *Store { return open(t, url, nil) })
		})
	}
}

// TestRefusedProductOfAClient: New asks nothing, so Check finds what Open refuses.
func TestRefusedProductOfAClient(t *testing.T) {
	t.Parallel()
	url := disguise(t, "redis_version:6.3.4\r\nmvcc_depth:0\r\nrole:active-replica\r\n")
	client, err := rueidis.NewClient(rueidis.MustParseURL(url + "?client_cache=0"))
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	s, err := New(client, nil)
	testkit.Must(t, err)
	found, err := s.Check(t.Context())
	testkit.Must(t, err)
	if !slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.Name == "product" && f.Severity == store.SeverityDangerous && strings.Contains(f.What, "a KeyDB active replica")
	}) {
		t.Errorf("found\n%s", list(found))
	}
}

// TestUnknownProduct: a product that no table has runs, and Check says that nothing is known of it.
func TestUnknownProduct(t *testing.T) {
	t.Parallel()
	sqltest.FindsProduct(t, open(t, disguise(t, "shiny_version:3.1\r\n"), nil), "does not tell this user what it is", store.SeverityUnchecked)
}

// disguise returns a URL of the shared server. A proxy in between replaces INFO by ECHO of the text,
// which has an answer of the same type.
func disguise(t *testing.T, info string) string {
	t.Helper()
	server := sharedRedis()
	return server.URLAt(testkit.Serve(t, func(_ int, c *net.TCPConn) { relay(c, server.Addr(), info) }))
}

// relay carries a connection to a server, command by command.
func relay(client net.Conn, addr, info string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	from := bufio.NewReader(client)
	// number reads the line of a length.
	number := func() (int, error) {
		line, err := from.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	for {
		n, err := number()
		if err != nil {
			return
		}
		command := make([]string, n)
		for i := range command {
			size, err := number()
			if err != nil {
				return
			}
			word := make([]byte, size+2)
			if _, err := io.ReadFull(from, word); err != nil {
				return
			}
			command[i] = string(word[:size])
		}
		if strings.EqualFold(command[0], "INFO") {
			command = []string{"ECHO", info}
		}
		var text strings.Builder
		text.WriteString(fmt.Sprintf("*%d\r\n", len(command)))
		for _, word := range command {
			text.WriteString(fmt.Sprintf("$%d\r\n%s\r\n", len(word), word))
		}
		if _, err := io.WriteString(server, text.String()); err != nil {
			return
		}
	}
}
