package servers

import (
	"fmt"
	"time"
)

// NoonZone returns the name of a time zone in which it is now between 12:00 and 13:00. A test
// that counts by calendar uses it, because the day and the month then end hours after the test.
func NoonZone() string { return fmt.Sprintf("Etc/GMT%+d", time.Now().UTC().Hour()-12) }
