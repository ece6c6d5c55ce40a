package gate

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// client is the address that a request came from: the one that a trusted proxy
// forwards, otherwise the peer's own. The list is read from its end, where the
// nearest proxy writes; entries that a client wrote itself come before and are
// never reached.
func client(r *http.Request, trusted []netip.Prefix) netip.Addr {
	at := address(r.RemoteAddr)
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		from := address(strings.TrimSpace(hop))
		if !contains(trusted, at) || !from.IsValid() {
			return at
		}
		at = from
	}
	return at
}

// Proxied says that an address belongs to a proxy that is not trusted to forward
// client addresses: all clients behind it count as one.
func (g *Gate) Proxied(r *http.Request) bool {
	return r.Header.Get("X-Forwarded-For") != "" && g.From(r) == address(r.RemoteAddr)
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// address reads one with or without a port; invalid: not an address.
func address(text string) netip.Addr {
	a, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(text) // invalid if it is none
		a = withPort.Addr()
	}
	return a.Unmap().WithZone("")
}
