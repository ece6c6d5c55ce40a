package simulator

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

// replicaURLs contains the URLs of several replicas. Callers use one URL until a request fails, and then the next URL.
type replicaURLs struct {
	urls     []string
	position atomic.Uint64
}

// newReplicaURLs parses URLs that are separated by commas. The caller begins with URL number firstIndex.
func newReplicaURLs(urls string, firstIndex int) *replicaURLs {
	r := &replicaURLs{urls: splitURLs(urls)}
	r.position.Store(uint64(firstIndex))
	return r
}

// current returns the URL to use and its position. If a request to this URL fails, the caller passes the position to
// failOver.
func (r *replicaURLs) current() (url string, position uint64) {
	position = r.position.Load()
	return r.urls[position%uint64(len(r.urls))], position
}

// failOver switches from the URL at failedPosition to the next URL. It does nothing if another caller has already
// switched.
func (r *replicaURLs) failOver(failedPosition uint64) {
	r.position.CompareAndSwap(failedPosition, failedPosition+1)
}

func splitURLs(urls string) (list []string) {
	list = strings.Split(urls, ",")
	for i, one := range list {
		list[i] = strings.TrimRight(strings.TrimSpace(one), "/")
	}
	return list
}

func checkURLs(urls string, schemes ...string) error {
	for _, text := range splitURLs(urls) {
		u, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("invalid URL: %w", err)
		}
		if u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			return fmt.Errorf("URL %q: want %s://host:port", u.Redacted(), strings.Join(schemes, ":// or "))
		}
	}
	return nil
}
