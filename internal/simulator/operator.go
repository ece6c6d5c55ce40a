package simulator

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// answerLimit is how long an answer may take to begin: an import's does for five minutes,
// while a broker makes its accounts.
const answerLimit = 10 * time.Minute

// Operator is a client of the operators' API of several replicas.
type Operator struct {
	*operators.Client
	replicas *replicas
	token    string
	first    string // the URL that requests are made for
	http     *http.Transport
}

// NewOperator makes a client for the dispatcher at url; several replicas have
// commas between. After a call that failed, the next goes to another. The
// token is an operator token of role admin.
func NewOperator(url, token string) (*Operator, error) {
	transport := &http.Transport{ResponseHeaderTimeout: answerLimit, MaxIdleConnsPerHost: registerAtOnce}
	o := &Operator{replicas: newReplicas(url, 0), token: token, http: transport}
	o.first = o.replicas.urls[0]
	var err error
	o.Client, err = operators.New(operators.Config{URL: o.first, Token: token, Tries: 1, Transport: o})
	return o, err
}

// RoundTrip asks one replica. Only a reading that got no answer is tried again,
// at each of the others.
func (o *Operator) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	path := strings.TrimPrefix(r.URL.String(), o.first)
	for n := len(o.replicas.urls); n > 0; n-- {
		base, mark := o.replicas.current()
		to := r.Clone(r.Context())
		if to.URL, err = url.Parse(base + path); err != nil {
			return nil, err
		}
		to.Host = ""
		answer, err = o.http.RoundTrip(to)
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			break
		}
		o.replicas.leave(mark)
		if n == 1 || r.Method != http.MethodGet || r.Context().Err() != nil {
			break
		}
		if answer != nil {
			_ = answer.Body.Close()
		}
	}
	return answer, err
}
