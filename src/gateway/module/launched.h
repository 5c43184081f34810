/*
 * launched.h - how the module learns that `idem gateway` started its nginx: by
 * this environment variable. Then the user did not write nginx.conf, and the
 * gateway says in terms of its own options what the module would warn of.
 */
#ifndef IDEM__GATEWAY_LAUNCHED_H
#define IDEM__GATEWAY_LAUNCHED_H

#define GATEWAY_LAUNCHED "IDEM_GATEWAY_LAUNCHED"

#endif
