package gate

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestClientIsWhoATrustedProxyNames(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		remote    string
		forwarded []string
		want      string
	}{
		{"203.0.113.5:1", nil, "203.0.113.5"},
		{"203.0.113.5:1", []string{"198.51.100.1"}, "203.0.113.5"},                    // forged
		{"10.0.0.1:1", nil, "10.0.0.1"},                                               // the request of the proxy itself
		{"10.0.0.1:1", []string{"198.51.100.1"}, "198.51.100.1"},                      //
		{"10.0.0.1:1", []string{"192.0.2.1, 10.9.9.9, 198.51.100.1"}, "198.51.100.1"}, // the first two are forged
		{"10.0.0.1:1", []string{"192.0.2.1", "198.51.100.1"}, "198.51.100.1"},         // two header lines
		{"10.0.0.1:1", []string{"192.0.2.1, 198.51.100.1, 10.0.0.2"}, "198.51.100.1"}, // two proxies
		{"10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},                    // a client in the network of the proxies
		{"10.0.0.1:1", []string{"198.51.100.1, unknown"}, "10.0.0.1"},                 // a proxy that hides the address
		{"10.0.0.1:1", []string{""}, "10.0.0.1"},                                      //
		{"10.0.0.1:1", []string{"198.51.100.1:4711"}, "198.51.100.1"},                 //
		{"[fd00::1]:1", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},                //
		{"[fd00::1]:1", []string{"2001:db8::7%eth0"}, "2001:db8::7"},                  //
		{"[::ffff:10.0.0.1]:1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},      //
		{"nonsense", []string{"198.51.100.1"}, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		if got := clientAddress(r, trusted).String(); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.remote, c.forwarded, got, c.want)
		}
	}
}
