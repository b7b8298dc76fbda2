//go:build unix

package servertest

import (
	"fmt"
	"strings"
)

// A gateway is a program that can be in front of a service.
type gateway struct {
	program program
	// around is the configuration before and after that of the test.
	around [2]string
	args   []string // the last one is the path of the configuration
	users  []string
}

var gateways = map[string]gateway{
	"nginx": {
		program: program{names: []string{"nginx"}, places: []string{"/usr/sbin", "/usr/local/sbin"}, pkg: "nginx", service: "nginx"},
		around:  [2]string{"daemon off; worker_processes 1; pid nginx.pid; error_log stderr; events {} http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n", "}\n"},
		args:    []string{"nginx", "-e", "stderr", "-p", ".", "-c"},
		users:   []string{"www-data"},
	},
	"caddy": {
		program: program{names: []string{"caddy"}, pkg: "caddy", service: "caddy"},
		around:  [2]string{"{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}\n", ""},
		args:    []string{"caddy", "run", "--adapter", "caddyfile", "--config"},
		users:   []string{"caddy"},
	},
	"haproxy": {
		program: program{names: []string{"haproxy"}, places: []string{"/usr/sbin"}, pkg: "haproxy", service: "haproxy"},
		args:    []string{"haproxy", "-db", "-f"},
		users:   []string{"haproxy"},
	},
}

// A GatewayServer is a gateway of a test: nginx, Caddy or HAProxy.
type GatewayServer struct{ server }

// Gateway starts the gateway of that name ("nginx", "caddy", "haproxy"). config returns its
// configuration for its address; that of nginx stands in its block http. It ends with its owner. It
// returns when the gateway accepts connections.
func Gateway(owner Owner, name string, config func(addr string) string) *GatewayServer {
	owner.Helper()
	s, err := newGateway(owner, name, config)
	return started(owner, s, err)
}

func newGateway(owner Owner, name string, config func(addr string) string) (*GatewayServer, error) {
	g, ok := gateways[name]
	if !ok {
		return nil, fmt.Errorf("%q is no gateway", name)
	}
	path, err := g.program.find()
	if err != nil {
		return nil, err
	}
	s := &GatewayServer{}
	if err := s.prepare(owner, name, g.users...); err != nil {
		return nil, err
	}
	s.ready, s.wipe = s.accepts, func() error { return nil }
	file := s.folder.join("config")
	s.command.path, s.command.args = path, append(g.args[:len(g.args):len(g.args)], file)
	s.command.env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.folder.path}
	text := g.around[0] + strings.TrimSpace(config(s.Addr())) + "\n" + g.around[1]
	if err := s.write(map[string]string{"config": text}); err != nil {
		return nil, err
	}
	return s, s.begin()
}
