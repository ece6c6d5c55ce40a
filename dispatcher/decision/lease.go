package decision

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/store"
)

// LeaseID names the lease of a task, should it be granted now. The nonce tells reports
// apart.
func LeaseID(c store.Candidate, nonce string) string {
	return fmt.Sprintf("%d.%d.%s", c.Task, c.Attempt, nonce)
}

// TaskOf is the task that a lease id was made for; 0: it is none of ours.
func TaskOf(lease string) int64 {
	task, _, _ := strings.Cut(lease, ".")
	id, err := strconv.ParseInt(task, 10, 64)
	if err != nil {
		return 0
	}
	return id
}
